-- A way in: coupons of another system, and those that are only observed beside it: ladder and core run over them, and what would have
-- become of them is noted, while the other system decides. New columns have defaults, so that workers of the release before run beside
-- these; but those know of no observed coupons, and would expire them: all workers are of this release before anything is observed.

-- +goose Up

-- observed 1: another system owns it. No verb moves it and nothing is told of it. Its due_at, and a lock's lock_until, are when the core
-- looks at it next; what they were at first stands in its history.
ALTER TABLE coupon ADD COLUMN observed TINYINT UNSIGNED NOT NULL DEFAULT 0;
ALTER TABLE coupon_archive ADD COLUMN observed TINYINT UNSIGNED NOT NULL DEFAULT 0 AFTER expire_cause;

-- Each import by its name; its coupons have the grant keys of the issuer "import:" and that name. observe 1: they are observed. Pruned by
-- nobody: a row for each system that was ever moved here.
CREATE TABLE import_source (
  name       VARBINARY(64) NOT NULL,
  observe    TINYINT       NOT NULL,
  created_at DATETIME(3)   NOT NULL,
  updated_at DATETIME(3)   NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What the core decided about observed coupons: once for each instant at which something was owed. Pruned by the import's cut-over.
CREATE TABLE observation (
  coupon_id  BIGINT UNSIGNED NOT NULL,
  due_at     DATETIME(3)     NOT NULL,
  decided_at DATETIME(3)     NOT NULL,
  decision   VARCHAR(16)     NOT NULL,
  cause      VARCHAR(16)     NOT NULL,
  PRIMARY KEY (coupon_id, due_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
-- Refused (name cannot be null) while an import is observed: without the column its coupons would be real.
INSERT INTO import_source (name, observe, created_at, updated_at)
  SELECT NULL, 0, UTC_TIMESTAMP(3), UTC_TIMESTAMP(3) FROM import_source WHERE observe = 1 LIMIT 1;
DROP TABLE observation;
DROP TABLE import_source;
ALTER TABLE coupon_archive DROP COLUMN observed;
ALTER TABLE coupon DROP COLUMN observed;
