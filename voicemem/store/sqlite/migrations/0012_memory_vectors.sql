-- Vectors of memories by their number, and by the embedder that made them; null for a memory that is to have none. What changes
-- the text of a memory, or removes it, deletes its vector.
create table memory_vectors (
    number integer primary key,
    embedder integer not null,
    vector blob
) strict;
create index memory_vectors_by_embedder on memory_vectors (number, embedder);
