-- Keys of the HTTP API. digest: SHA-256 of the secret.
CREATE TABLE runyard.api_keys (
    key_id     text PRIMARY KEY,
    tenant     text NOT NULL,
    name       text NOT NULL,
    scopes     text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'write', 'respond', 'admin'] AND scopes <> '{}'),
    digest     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz
);
CREATE INDEX api_keys_tenant ON runyard.api_keys (tenant, created_at);
