-- Grants that came while an operator had paused their issuance, what a bulk change or a replay of events has come to, and coupons
-- that were given back after their end.

-- +goose Up

-- Grants that were taken from the broker and wait for the pause to end. body is the grant as JSON. Pruned by the publisher,
-- which grants them then.
CREATE TABLE grant_held (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  template_id BIGINT UNSIGNED NOT NULL,
  batch_id    VARBINARY(128)  NOT NULL,
  body        BLOB            NOT NULL,
  created_at  DATETIME(3)     NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A bulk change, or a replay of events: what was asked for, and how far it has come, as JSON. Whoever works on it keeps the
-- lease; the same command goes on with one that stopped. Pruned by nobody: people act seldom.
CREATE TABLE operation (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  kind        VARCHAR(32)     NOT NULL,
  ask_hash    BINARY(32)      NOT NULL,
  ask         MEDIUMBLOB      NOT NULL,
  progress    BLOB            NOT NULL,
  done        TINYINT         NOT NULL,
  owner       VARBINARY(64)   NOT NULL,
  lease_until DATETIME(3)     NOT NULL,
  epoch       BIGINT UNSIGNED NOT NULL,
  created_at  DATETIME(3)     NOT NULL,
  updated_at  DATETIME(3)     NOT NULL,
  PRIMARY KEY (id),
  KEY operation_ask (kind, ask_hash, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Coupons that an operator gave back after their end. A coupon that had returned its piece of the quota takes it again: how many
-- did, ever, so that whoever compares the counter with the coupons knows what moved meanwhile.
ALTER TABLE template_stats
  ADD COLUMN reinstated       BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN reinstated_value BIGINT NOT NULL DEFAULT 0;
ALTER TABLE template_stock ADD COLUMN reinstated BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE template_stock DROP COLUMN reinstated;
ALTER TABLE template_stats DROP COLUMN reinstated_value, DROP COLUMN reinstated;
DELETE FROM setting WHERE name >= 'pause.' AND name < 'pause/';
DROP TABLE operation;
DROP TABLE grant_held;
