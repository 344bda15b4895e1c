// @ts-check
/** Elements are made here and nowhere else. Text only ever becomes text nodes, so nothing that was said can be markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element of HTML. `on` has its listeners, `dataset` its data; other attributes are set as they are called,
 * `true` without a value, and not at all for null, undefined and false.
 * @param {string} tag @param {Record<string, any> | null} [attributes] @param {...any} children
 * @returns {any}
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. @param {string} tag @param {Record<string, any> | null} [attributes] @param {...any} children @returns {any} */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Take everything out of a node. @param {Element} node */
export function clear(node) {
  node.replaceChildren();
}

/** Put these in place of all that a node has. @param {Element} node @param {...any} children */
export function replace(node, ...children) {
  node.replaceChildren(...real(children));
}

/** @param {Element} node @param {Record<string, any> | null | undefined} attributes @param {any[]} children */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "dataset") Object.assign(/** @type {HTMLElement} */ (node).dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...real(children));
  return node;
}

/** @param {any[]} children @returns {(Node | string)[]} */
function real(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}
