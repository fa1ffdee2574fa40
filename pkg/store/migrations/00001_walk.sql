-- The walk: templates, coupons, their history, grant keys, quotas and the outbox.
-- Times are UTC, written with UTC_TIMESTAMP(3). Ids of the outside world are bytes: a collation would ignore
-- trailing spaces. "Never" is 9999-12-31. Each table says who prunes it.

-- +goose Up

-- What a campaign promises. Rows are immutable: a change is a new revision, and a coupon keeps its own.
-- Pruned by nobody: small, and every coupon refers to its revision.
CREATE TABLE coupon_template (
  id         BIGINT UNSIGNED NOT NULL,
  revision   INT UNSIGNED    NOT NULL,
  name       VARCHAR(200)    NOT NULL,
  rule       VARCHAR(512)    NOT NULL,
  value      BIGINT          NOT NULL,
  currency   CHAR(3)         NOT NULL,
  prec_class VARCHAR(16)     NOT NULL,
  created_at DATETIME(3)     NOT NULL,
  actor      VARCHAR(128)    NOT NULL,
  reason     VARCHAR(255)    NOT NULL,
  PRIMARY KEY (id, revision)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The moving part of a template: which revision issues now, and how much of its stock is taken. Locked by
-- issuance alone, never by an expiry batch. Pruned by nobody.
CREATE TABLE template_stock (
  template_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  revision    INT UNSIGNED    NOT NULL,
  quota       BIGINT          NOT NULL,
  per_user    BIGINT          NOT NULL,
  taken       BIGINT          NOT NULL,
  stopped     TINYINT         NOT NULL,
  PRIMARY KEY (template_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The row is the schedule. Pruned by the archive.
CREATE TABLE coupon (
  id              BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
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
  PRIMARY KEY (id),
  KEY coupon_due (status, due_at, id),
  KEY coupon_wallet (user_id, status, expires_at, id),
  KEY coupon_order (order_id),
  KEY coupon_lock (status, lock_until, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row per transition, with all that its event carries beside the coupon's immutable columns, so that events
-- can be replayed and history replays to the state. Pruned with its coupon, by the archive.
CREATE TABLE coupon_history (
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
  PRIMARY KEY (coupon_id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One issuer's key yields one coupon, once, for ever. Never pruned, never archived.
CREATE TABLE grant_key (
  issuer       VARBINARY(128)  NOT NULL,
  grant_key    VARBINARY(128)  NOT NULL,
  coupon_id    BIGINT UNSIGNED NOT NULL,
  content_hash BINARY(32)      NOT NULL,
  PRIMARY KEY (issuer, grant_key),
  KEY grant_key_coupon (coupon_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- How many of a template one user was granted. Written only for templates with a limit per user. Pruned by nobody.
CREATE TABLE user_quota (
  template_id BIGINT UNSIGNED NOT NULL,
  user_id     VARBINARY(128)  NOT NULL,
  taken       BIGINT          NOT NULL,
  PRIMARY KEY (template_id, user_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What the broker still has to be told. Lane 0: triggers (routing_key holds the kind, deliver_at the instant);
-- lane 1: events. Pruned by the relay: each row when the broker confirmed it.
CREATE TABLE outbox (
  id          BIGINT UNSIGNED   NOT NULL AUTO_INCREMENT,
  lane        TINYINT UNSIGNED  NOT NULL,
  part        TINYINT UNSIGNED  NOT NULL,
  coupon_id   BIGINT UNSIGNED   NOT NULL,
  msg_id      VARBINARY(200)    NOT NULL,
  routing_key VARCHAR(64)       NOT NULL,
  class       CHAR(1)           NOT NULL,
  deliver_at  DATETIME(3)       NULL,
  body        BLOB              NOT NULL,
  trace       VARCHAR(64)       NOT NULL,
  refused     SMALLINT UNSIGNED NOT NULL,
  created_at  DATETIME(3)       NOT NULL,
  PRIMARY KEY (lane, part, id),
  KEY outbox_id (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Which relay owns which partition. Sixteen rows for ever.
CREATE TABLE outbox_part (
  part        TINYINT UNSIGNED NOT NULL,
  owner       VARBINARY(64)    NOT NULL,
  lease_until DATETIME(3)      NOT NULL,
  epoch       BIGINT UNSIGNED  NOT NULL,
  PRIMARY KEY (part)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO outbox_part (part, owner, lease_until, epoch) VALUES
  (0,'','1970-01-02',0),(1,'','1970-01-02',0),(2,'','1970-01-02',0),(3,'','1970-01-02',0),
  (4,'','1970-01-02',0),(5,'','1970-01-02',0),(6,'','1970-01-02',0),(7,'','1970-01-02',0),
  (8,'','1970-01-02',0),(9,'','1970-01-02',0),(10,'','1970-01-02',0),(11,'','1970-01-02',0),
  (12,'','1970-01-02',0),(13,'','1970-01-02',0),(14,'','1970-01-02',0),(15,'','1970-01-02',0);

-- Rows that the broker refused too often, set aside for a person. Pruned by an operator's replay or discard.
CREATE TABLE outbox_parked (
  id          BIGINT UNSIGNED  NOT NULL,
  lane        TINYINT UNSIGNED NOT NULL,
  part        TINYINT UNSIGNED NOT NULL,
  coupon_id   BIGINT UNSIGNED  NOT NULL,
  msg_id      VARBINARY(200)   NOT NULL,
  routing_key VARCHAR(64)      NOT NULL,
  class       CHAR(1)          NOT NULL,
  deliver_at  DATETIME(3)      NULL,
  body        BLOB             NOT NULL,
  trace       VARCHAR(64)      NOT NULL,
  reason      VARCHAR(255)     NOT NULL,
  parked_at   DATETIME(3)      NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Small facts of the installation: its id, horizon and frontier, ladder marks, clock acceptance. Rows of a pod
-- (ladder marks) are overwritten by it and ignored when old; the expirer prunes those older than a day.
CREATE TABLE setting (
  name       VARBINARY(128) NOT NULL,
  value      VARBINARY(512) NOT NULL,
  updated_at DATETIME(3)    NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The start-up self-test locks one of these and must be able to skip it.
INSERT INTO setting (name, value, updated_at) VALUES
  ('selftest.a', '', UTC_TIMESTAMP(3)), ('selftest.b', '', UTC_TIMESTAMP(3));

-- +goose Down
DROP TABLE setting;
DROP TABLE outbox_parked;
DROP TABLE outbox_part;
DROP TABLE outbox;
DROP TABLE user_quota;
DROP TABLE grant_key;
DROP TABLE coupon_history;
DROP TABLE coupon;
DROP TABLE template_stock;
DROP TABLE coupon_template;
