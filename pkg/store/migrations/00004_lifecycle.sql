-- The coupon's whole life: the terms of offers, late payment and quota return, what order events leave behind,
-- statistics, answers by idempotency key, and the archive that readers and refunds reach into. New columns have
-- defaults, so that workers of the release before run beside these.

-- +goose Up

ALTER TABLE coupon_template
  ADD COLUMN late_pay_policy VARCHAR(16)   NOT NULL DEFAULT 'honour_lock',
  ADD COLUMN late_pay_window INT UNSIGNED  NOT NULL DEFAULT 1800,
  ADD COLUMN quota_back      VARCHAR(16)   NOT NULL DEFAULT 'none',
  ADD COLUMN offer           VARCHAR(16)   NOT NULL DEFAULT 'amount',
  ADD COLUMN basis_points    INT UNSIGNED  NOT NULL DEFAULT 0,
  ADD COLUMN cap             BIGINT        NOT NULL DEFAULT 0,
  ADD COLUMN min_spend       BIGINT        NOT NULL DEFAULT 0,
  ADD COLUMN scopes          VARCHAR(3000) NOT NULL DEFAULT '[]';

-- Operators list by campaign and by batch. Neither column ever changes, so a transition costs nothing here.
ALTER TABLE coupon
  ADD KEY coupon_template (template_id, id),
  ADD KEY coupon_batch (batch_id, id);

-- To locked: the lock's end. From locked: the end of the lock that was given up. previous: the end before it was moved.
ALTER TABLE coupon_history
  ADD COLUMN lock_until DATETIME(3) NULL,
  ADD COLUMN previous   DATETIME(3) NULL;

-- What an expired or voided coupon gives back to its template, written with the transition. Pruned by the publisher,
-- which folds it into the counters.
CREATE TABLE quota_return (
  coupon_id   BIGINT UNSIGNED NOT NULL,
  template_id BIGINT UNSIGNED NOT NULL,
  user_id     VARBINARY(128)  NOT NULL,
  to_user     TINYINT         NOT NULL,
  created_at  DATETIME(3)     NOT NULL,
  PRIMARY KEY (coupon_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Statistics per template and UTC day, kept from the events. Pruned by nobody: a row per template and day.
CREATE TABLE template_stats (
  template_id    BIGINT UNSIGNED NOT NULL,
  day            DATE            NOT NULL,
  granted        BIGINT          NOT NULL DEFAULT 0,
  locked         BIGINT          NOT NULL DEFAULT 0,
  released       BIGINT          NOT NULL DEFAULT 0,
  used           BIGINT          NOT NULL DEFAULT 0,
  refunded       BIGINT          NOT NULL DEFAULT 0,
  expired        BIGINT          NOT NULL DEFAULT 0,
  voided         BIGINT          NOT NULL DEFAULT 0,
  granted_value  BIGINT          NOT NULL DEFAULT 0,
  used_value     BIGINT          NOT NULL DEFAULT 0,
  refunded_value BIGINT          NOT NULL DEFAULT 0,
  expired_value  BIGINT          NOT NULL DEFAULT 0,
  voided_value   BIGINT          NOT NULL DEFAULT 0,
  PRIMARY KEY (template_id, day)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Which events the statistics count already: an event's id is its coupon, version and type. Pruned by nobody, since
-- events may be replayed from history for ever.
CREATE TABLE ledger_seen (
  coupon_id BIGINT UNSIGNED NOT NULL,
  version   INT UNSIGNED    NOT NULL,
  PRIMARY KEY (coupon_id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- An order that was closed or refunded, so that what comes later for it, out of order, takes nothing. Pruned by the
-- publisher after thirty days.
CREATE TABLE order_tombstone (
  coupon_id  BIGINT UNSIGNED NOT NULL,
  order_id   VARBINARY(128)  NOT NULL,
  closed     TINYINT         NOT NULL,
  refunded   TINYINT         NOT NULL,
  created_at DATETIME(3)     NOT NULL,
  PRIMARY KEY (coupon_id, order_id),
  KEY order_tombstone_age (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The answer to a request by its Idempotency-Key; status 0 while it is being worked on, until lease_until. Pruned by
-- the publisher after a day.
CREATE TABLE idempotency_key (
  caller      VARBINARY(64)     NOT NULL,
  idem_key    VARBINARY(128)    NOT NULL,
  body_hash   BINARY(32)        NOT NULL,
  status      SMALLINT UNSIGNED NOT NULL,
  answer      MEDIUMBLOB        NOT NULL,
  lease_until DATETIME(3)       NOT NULL,
  created_at  DATETIME(3)       NOT NULL,
  PRIMARY KEY (caller, idem_key),
  KEY idempotency_key_age (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Finished coupons and their history, moved here when they are old. Columns as in coupon and coupon_history.
-- Pruned by the operator's retention.
CREATE TABLE coupon_archive (
  id              BIGINT UNSIGNED  NOT NULL,
  template_id     BIGINT UNSIGNED  NOT NULL,
  revision        INT UNSIGNED     NOT NULL,
  batch_id        VARBINARY(128)   NOT NULL,
  user_id         VARBINARY(128)   NOT NULL,
  status          TINYINT UNSIGNED NOT NULL,
  version         INT UNSIGNED     NOT NULL,
  valid_from      DATETIME(3)      NOT NULL,
  expires_at      DATETIME(3)      NOT NULL,
  due_at          DATETIME(3)      NOT NULL,
  granted_at      DATETIME(3)      NOT NULL,
  locked_at       DATETIME(3)      NULL,
  lock_until      DATETIME(3)      NULL,
  order_id        VARBINARY(128)   NULL,
  late_pay_policy VARCHAR(16)      NULL,
  late_pay_window INT UNSIGNED     NULL,
  used_at         DATETIME(3)      NULL,
  expired_at      DATETIME(3)      NULL,
  expire_cause    VARCHAR(16)      NULL,
  archived_at     DATETIME(3)      NOT NULL,
  PRIMARY KEY (id),
  KEY archive_wallet (user_id, status, expires_at, id),
  KEY archive_order (order_id),
  KEY archive_template (template_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE coupon_history_archive (
  coupon_id   BIGINT UNSIGNED  NOT NULL,
  version     INT UNSIGNED     NOT NULL,
  from_status TINYINT UNSIGNED NOT NULL,
  to_status   TINYINT UNSIGNED NOT NULL,
  cause       VARCHAR(16)      NOT NULL,
  at          DATETIME(3)      NOT NULL,
  expires_at  DATETIME(3)      NOT NULL,
  due_at      DATETIME(3)      NOT NULL,
  order_id    VARBINARY(128)   NOT NULL,
  actor       VARCHAR(128)     NOT NULL,
  reason      VARCHAR(255)     NOT NULL,
  trigger_id  VARCHAR(64)      NOT NULL,
  origin      VARCHAR(16)      NOT NULL,
  trace       VARCHAR(64)      NOT NULL,
  lock_until  DATETIME(3)      NULL,
  previous    DATETIME(3)      NULL,
  PRIMARY KEY (coupon_id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DELETE FROM setting WHERE name = 'ledger.seed';
DROP TABLE coupon_history_archive;
DROP TABLE coupon_archive;
DROP TABLE idempotency_key;
DROP TABLE order_tombstone;
DROP TABLE ledger_seen;
DROP TABLE template_stats;
DROP TABLE quota_return;
ALTER TABLE coupon_history DROP COLUMN previous, DROP COLUMN lock_until;
ALTER TABLE coupon DROP KEY coupon_batch, DROP KEY coupon_template;
ALTER TABLE coupon_template
  DROP COLUMN scopes, DROP COLUMN min_spend, DROP COLUMN cap, DROP COLUMN basis_points,
  DROP COLUMN offer, DROP COLUMN quota_back, DROP COLUMN late_pay_window, DROP COLUMN late_pay_policy;
