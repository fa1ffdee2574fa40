-- The per-user digest: events gather in windows, a window that closes becomes one notice per channel, and the
-- in-app channel is a table of its own. Later kinds and channels are values, not columns.

-- +goose Up

-- Items of one user and kind that are told together. open_mark is 1 while items may join and NULL for ever after,
-- so that the unique key admits one open window. due_at is when a closer looks at it next, never later than it
-- must close and often earlier (an item that joins does not move it); never (9999-12-31) once its notices exist.
-- Pruned by the expirer's archive, with its items and notices.
CREATE TABLE notice_window (
  id           BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  user_id      VARBINARY(128)   NOT NULL,
  kind         VARCHAR(32)      NOT NULL,
  open_mark    TINYINT UNSIGNED NULL,
  items        INT UNSIGNED     NOT NULL,
  opened_at    DATETIME(3)      NOT NULL,
  last_item_at DATETIME(3)      NOT NULL,
  due_at       DATETIME(3)      NOT NULL,
  closed_at    DATETIME(3)      NULL,
  closed_by    VARCHAR(16)      NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY notice_window_open (user_id, kind, open_mark),
  KEY notice_window_due (kind, due_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One event in one window, for ever: the event's id is what makes a repeat a no-op. dropped is empty for an item
-- that its notice counts, else why it does not. Pruned with its window.
CREATE TABLE notice_item (
  window_id  BIGINT UNSIGNED NOT NULL,
  event_id   VARBINARY(200)  NOT NULL,
  coupon_id  BIGINT UNSIGNED NOT NULL,
  version    INT UNSIGNED    NOT NULL,
  expires_at DATETIME(3)     NOT NULL,
  value      BIGINT          NOT NULL,
  currency   CHAR(3)         NOT NULL,
  dropped    VARCHAR(16)     NOT NULL,
  added_at   DATETIME(3)     NOT NULL,
  PRIMARY KEY (window_id, event_id),
  UNIQUE KEY notice_item_event (event_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What a channel tells a user of a window. Written before any send; the key admits one per (user, kind, window,
-- channel), since a window has one user and one kind. state: pending, sent, suppressed. try_at is when any pod may
-- (next) deliver it, pushed ahead as a lease by the one that does; never once settled. Pruned with its window.
CREATE TABLE notice (
  window_id  BIGINT UNSIGNED   NOT NULL,
  channel    VARCHAR(16)       NOT NULL,
  user_id    VARBINARY(128)    NOT NULL,
  kind       VARCHAR(32)       NOT NULL,
  items      INT UNSIGNED      NOT NULL,
  state      VARCHAR(16)       NOT NULL,
  reason     VARCHAR(64)       NOT NULL,
  attempts   SMALLINT UNSIGNED NOT NULL,
  try_at     DATETIME(3)       NOT NULL,
  created_at DATETIME(3)       NOT NULL,
  settled_at DATETIME(3)       NULL,
  PRIMARY KEY (window_id, channel),
  KEY notice_try (channel, try_at),
  KEY notice_user (user_id, kind, window_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What users read in the app, in the order written. texts: {"en": {"title": …, "text": …}, "zh-CN": …}, so that the
-- reader's language is chosen when it is read. Pruned by the expirer's archive, by age.
CREATE TABLE inbox (
  user_id    VARBINARY(128)  NOT NULL,
  id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  window_id  BIGINT UNSIGNED NOT NULL,
  kind       VARCHAR(32)     NOT NULL,
  items      INT UNSIGNED    NOT NULL,
  texts      JSON            NOT NULL,
  created_at DATETIME(3)     NOT NULL,
  read_at    DATETIME(3)     NULL,
  PRIMARY KEY (user_id, id),
  UNIQUE KEY inbox_window (window_id),
  KEY inbox_id (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE inbox;
DROP TABLE notice;
DROP TABLE notice_item;
DROP TABLE notice_window;
