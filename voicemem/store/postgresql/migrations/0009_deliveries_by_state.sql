-- Deliveries that were not made, for the lists of a project; and those of an endpoint by time, of which a day is counted.
create index exports_by_state on exports (state, key) where state != 'delivered';
create index exports_by_time on exports (endpoint, made_ms, state);
