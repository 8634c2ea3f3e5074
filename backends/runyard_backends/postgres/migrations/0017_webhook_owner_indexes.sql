-- Set the owners of deliveries to webhooks for all tenants. Deliveries to removed webhooks get an owner too, because the tenants of these
-- webhooks are unknown. Then make the indexes by owner. Reads of deliveries continue meanwhile.
LOCK TABLE runyard.webhook_deliveries IN SHARE ROW EXCLUSIVE MODE;
UPDATE runyard.webhook_deliveries d SET owner = ''
WHERE d.webhook_id IS NOT NULL AND d.tenant <> '' AND d.owner IS NULL AND NOT EXISTS (
    SELECT 1 FROM runyard.webhooks w WHERE w.webhook_id = d.webhook_id AND w.tenant IS NOT NULL);
CREATE INDEX webhook_deliveries_of_owner ON runyard.webhook_deliveries (coalesce(owner, tenant), delivery_no);
CREATE INDEX webhook_deliveries_owner_failed ON runyard.webhook_deliveries (coalesce(owner, tenant), delivery_no) WHERE failed_at IS NOT NULL;
CREATE INDEX webhook_deliveries_owner_delivered ON runyard.webhook_deliveries (coalesce(owner, tenant), delivery_no)
    WHERE delivered_at IS NOT NULL;
CREATE INDEX webhook_deliveries_owner_pending ON runyard.webhook_deliveries (coalesce(owner, tenant), delivery_no) WHERE next_at IS NOT NULL;
