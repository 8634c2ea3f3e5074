-- A key with the scope metrics reads the metrics of the API and nothing else.
ALTER TABLE runyard.api_keys
    DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check CHECK (scopes <@ ARRAY['read', 'write', 'respond', 'metrics', 'admin'] AND scopes <> '{}');
