-- The role with which Grafana reads usage, budgets and the counts of batches: no keys, no requests, no stored answers.
-- Run it as the owner of Laneway's tables, with the role's password, after `laneway db upgrade`; it may run again:
--   psql -d laneway -v ON_ERROR_STOP=1 -v password="$(cat grafana_password)" -f grafana_role.sql
SELECT 'CREATE ROLE laneway_grafana' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'laneway_grafana') \gexec
ALTER ROLE laneway_grafana LOGIN CONNECTION LIMIT 8 PASSWORD :'password';
ALTER ROLE laneway_grafana SET default_transaction_read_only = on;
ALTER ROLE laneway_grafana SET statement_timeout = '15s';
GRANT SELECT (id, slug, tier, status) ON tenants TO laneway_grafana;
GRANT SELECT (id, tenant_id, status, created_at, deadline_at, ended_at, lines, succeeded, failed, unrun)
    ON batches TO laneway_grafana;
GRANT SELECT ON usage_hours, budgets, budget_windows TO laneway_grafana;
