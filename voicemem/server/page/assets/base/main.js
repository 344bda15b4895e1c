// @ts-check
document.body.append("voicemem");
