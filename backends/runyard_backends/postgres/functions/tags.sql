-- Tags of threads. Lists read the table thread_tags. Triggers write it.

-- Return the digest of a tag. The digest is indexed, because a tag may be too long for an index entry. Readers also compare the tag
-- itself, because two tags may have the same digest.
CREATE OR REPLACE FUNCTION runyard.tag_term(name text, value text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN substr(sha256(convert_to(length(name) || ':' || name || value, 'UTF8')), 1, 12);
END $$;

-- Write the changed tags of a thread to thread_tags.
CREATE OR REPLACE FUNCTION runyard.note_tags() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(NEW.tags) <> 'object' OR TG_OP = 'UPDATE' AND jsonb_typeof(OLD.tags) <> 'object' THEN RETURN NULL; END IF; -- a damaged row
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM runyard.thread_tags g USING (SELECT * FROM jsonb_each_text(OLD.tags) EXCEPT SELECT * FROM jsonb_each_text(NEW.tags)) gone
        WHERE g.tenant = NEW.tenant AND g.term = runyard.tag_term(gone.key, gone.value) AND g.thread_key = NEW.thread_key;
    END IF;
    INSERT INTO runyard.thread_tags (tenant, term, thread_key)
    SELECT NEW.tenant, runyard.tag_term(t.key, t.value), NEW.thread_key FROM jsonb_each_text(NEW.tags) t
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER tagged AFTER INSERT ON runyard.threads FOR EACH ROW WHEN (NEW.tags <> '{}') EXECUTE FUNCTION runyard.note_tags();
CREATE OR REPLACE TRIGGER tagged_anew AFTER UPDATE OF tags ON runyard.threads FOR EACH ROW WHEN (OLD.tags <> NEW.tags)
    EXECUTE FUNCTION runyard.note_tags();
