"""Scripts that create what a page expects to exist when its reader begins, besides the samples."""

INSTALLED = """
kubectl apply --server-side -f deploy/install.yaml
kubectl wait --for=condition=Established crd/pgroles.pgrole.dev crd/pgservers.pgrole.dev
"""
#: For pages that do not begin in a new cluster; the server is that of PGROLE_DSN.
IN_USE = f"""
kubectl create namespace pgrole-system
kubectl -n pgrole-system create secret generic pgrole-controller-dsn --from-literal=dsn="$PGROLE_DSN"
{INSTALLED}
kubectl apply -f deploy/samples
kubectl wait -n shop --for=condition=Ready pgr --all --timeout=60s
"""

#: Scripts by page.
BEFORE = {
    "docs/export.md": """
psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN" <<'END'
CREATE ROLE shop_owner; CREATE ROLE shop_reader; CREATE ROLE shop_app LOGIN; GRANT shop_reader TO shop_app;
CREATE SCHEMA shop AUTHORIZATION shop_owner; CREATE TABLE shop.orders (id int); CREATE TABLE shop.customers (id int);
GRANT USAGE ON SCHEMA shop TO shop_reader; GRANT SELECT ON ALL TABLES IN SCHEMA shop TO shop_reader;
END
""",
    "docs/privileges.md": 'pgrole-controller sql | psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN"',
    "docs/running.md": f"""{INSTALLED}
until kubectl -n pgrole-system get lease pgrole-controller; do sleep 0.2; done
""",
    "docs/servers.md": f"""{INSTALLED}
kubectl create namespace shop
kubectl apply -f - <<END
apiVersion: pgrole.dev/v1alpha1
kind: PgServer
metadata: {{name: reports}}
spec:
  connection: {{hosts: [reports.invalid], sslMode: disable, credentialsSecretRef: {{name: pg-reports}}}}
  allow: {{namespaces: {{matchNames: [shop]}}, roleNames: [reports]}}
---
apiVersion: pgrole.dev/v1alpha1
kind: PgRole
metadata: {{name: reports, namespace: shop}}
spec: {{serverRef: {{name: reports}}}}
END
until kubectl get pgs reports -o jsonpath='{{.metadata.finalizers}}' | grep pgrole.dev/in-use; do :; done
kubectl delete pgs reports --wait=false
""",
    "docs/access.md": """
psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN" <<'END'
CREATE ROLE orders_owner; CREATE ROLE orders_writer; CREATE ROLE orders_reader; CREATE ROLE orders_app LOGIN;
CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN;
GRANT orders_reader TO orders_writer; GRANT orders_writer TO orders_app; GRANT orders_reader TO bob WITH INHERIT FALSE;
CREATE DATABASE orders;
END
pgrole-controller sql | psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN"
psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN" <<'END'
INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid,
                          privileges)
SELECT r.rolname, r.oid, s.system_identifier, 'c3f1a9', 'shop', 'uid', 'orders-reader', 'orders-reader-uid',
       '{"orders": [{"database": "orders", "schemas": [{"schema": "app", "access": ["Read"]}]}]}'
FROM pg_control_system() AS s, pg_roles AS r WHERE r.rolname = 'orders_reader';
\\connect orders
CREATE SCHEMA app AUTHORIZATION orders_owner;
SET ROLE orders_owner;
CREATE TABLE app.orders (id int, name text); CREATE TABLE app.t1 (id int); CREATE TABLE app.t2 (id int);
GRANT USAGE ON SCHEMA app TO orders_reader; GRANT SELECT ON ALL TABLES IN SCHEMA app TO orders_reader;
GRANT INSERT, UPDATE ON app.orders TO orders_writer; GRANT SELECT (name), UPDATE (name) ON app.orders TO alice;
END
""",
    "docs/claims.md": """
pgrole-controller sql | psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN"
psql -qX -v ON_ERROR_STOP=1 "$ADMIN_DSN" <<'END'
CREATE ROLE old_reports; CREATE ROLE orders_app; CREATE ROLE readers;
INSERT INTO pgrole.claim
SELECT r.rolname, r.oid, s.system_identifier, 'c3f1a9', 'shop', 'uid', object, object || '-uid', 'digest',
       drifts, CASE WHEN drifts > 0 THEN now() END, CASE WHEN drifts > 0 THEN '{createdb}'::text[] END, released
FROM pg_control_system() AS s,
     (VALUES ('old_reports', 'reports', 0, now()), ('orders_app', 'orders-app', 2, NULL),
             ('readers', 'readers', 0, NULL))
        AS c (role, object, drifts, released)
JOIN pg_roles AS r ON r.rolname = c.role;
END
""",
}
