-- Reminders before the end, channels with addresses, and what is known of users.

-- +goose Up

-- Which of the fleet's offsets a template's coupons are reminded at: empty for all, "none", or names with commas.
ALTER TABLE coupon_template ADD COLUMN reminders VARCHAR(255) NOT NULL DEFAULT '';

-- slot tells windows of one kind apart: of reminders the offset and the local day of the end (or, below a day, the end
-- itself); empty for expired. A second window of a slot that was closed is late. notify_at and ends_at are the least of
-- the members'.
ALTER TABLE notice_window
  DROP KEY notice_window_open,
  ADD COLUMN slot      VARBINARY(96)    NOT NULL DEFAULT '' AFTER kind,
  ADD COLUMN remind_at VARCHAR(16)      NOT NULL DEFAULT '' AFTER slot,
  ADD COLUMN late      TINYINT UNSIGNED NOT NULL DEFAULT 0 AFTER open_mark,
  ADD COLUMN notify_at DATETIME(3)      NULL AFTER due_at,
  ADD COLUMN ends_at   DATETIME(3)      NULL AFTER notify_at,
  ADD UNIQUE KEY notice_window_open (user_id, kind, slot, open_mark);

-- Told twice within a day or not: asked by coupon.
ALTER TABLE notice_item
  ADD COLUMN template_id BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER coupon_id,
  ADD KEY notice_item_coupon (coupon_id);

-- states: pending, sending (of channels that send at most once: whether it was sent is not known until it is settled),
-- sent, delivered, failed, suppressed, unknown. next_channels is the rest of the fallback chain, with commas. not_after is
-- when it is of no use any more. ref is the provider's own id. counted_on is the local day in notice_count that holds it, so
-- that it is counted once however often it is tried, and given back. No address is ever in reason.
ALTER TABLE notice
  ADD COLUMN slot          VARBINARY(96)  NOT NULL DEFAULT '' AFTER kind,
  ADD COLUMN next_channels VARCHAR(128)   NOT NULL DEFAULT '' AFTER reason,
  ADD COLUMN not_after     DATETIME(3)    NOT NULL DEFAULT '9999-12-31' AFTER try_at,
  ADD COLUMN ref           VARBINARY(128) NOT NULL DEFAULT '',
  ADD COLUMN counted_on    DATE           NULL,
  ADD KEY notice_state (state, window_id);

-- How many notices a user got by a channel on each local day: what caps are held against. Pruned by the expirer's
-- archive after nine days.
CREATE TABLE notice_count (
  user_id VARBINARY(128)    NOT NULL,
  channel VARCHAR(16)       NOT NULL,
  day     DATE              NOT NULL,
  sent    SMALLINT UNSIGNED NOT NULL,
  PRIMARY KEY (user_id, channel, day),
  KEY notice_count_day (day)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- display: empty, or popup: handed out once, which is when it is read, and of no use after valid_until.
ALTER TABLE inbox
  DROP KEY inbox_window,
  ADD COLUMN display     VARCHAR(8)  NOT NULL DEFAULT '' AFTER kind,
  ADD COLUMN valid_until DATETIME(3) NOT NULL DEFAULT '9999-12-31' AFTER created_at,
  ADD COLUMN handed_at   DATETIME(3) NULL,
  ADD UNIQUE KEY inbox_window (window_id, display),
  ADD KEY inbox_waiting (user_id, display, read_at, valid_until);

-- What users are known by. Each *_at beside a fact is the time of the event that told it: the last by that time wins.
-- addresses: sealed by the key address_key; empty for none. deleted_at: everything else is blank, and what was told before
-- that instant is not taken up again. Pruned by the notifier when seen_at is older than the retention.
CREATE TABLE user_profile (
  user_id      VARBINARY(128)  NOT NULL,
  locale       VARCHAR(35)     NOT NULL,
  zone         VARCHAR(64)     NOT NULL,
  addresses    VARBINARY(2048) NOT NULL,
  address_key  VARCHAR(32)     NOT NULL,
  profile_at   DATETIME(3)     NULL,
  login_at     DATETIME(3)     NULL,
  browse_at    DATETIME(3)     NULL,
  cart_at      DATETIME(3)     NULL,
  ordered_at   DATETIME(3)     NULL,
  deleted_at   DATETIME(3)     NULL,
  seen_at      DATETIME(3)     NOT NULL,
  PRIMARY KEY (user_id),
  KEY user_profile_seen (seen_at),
  KEY user_profile_key (address_key, user_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What a user does not want: of a channel and a kind, '*' for all of them. out_mark 0: wanted again. The last by
-- decided_at wins. Kept until the user is erased: no is no.
CREATE TABLE user_optout (
  user_id    VARBINARY(128)   NOT NULL,
  channel    VARCHAR(16)      NOT NULL,
  kind       VARCHAR(32)      NOT NULL,
  out_mark   TINYINT UNSIGNED NOT NULL,
  source     VARCHAR(16)      NOT NULL,
  decided_at DATETIME(3)      NOT NULL,
  PRIMARY KEY (user_id, channel, kind)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE user_optout;
DROP TABLE user_profile;
DELETE FROM inbox WHERE display <> '';
ALTER TABLE inbox DROP KEY inbox_waiting, DROP KEY inbox_window, DROP COLUMN display, DROP COLUMN valid_until, DROP COLUMN handed_at,
  ADD UNIQUE KEY inbox_window (window_id);
DROP TABLE notice_count;
DELETE FROM notice WHERE kind <> 'expired';
ALTER TABLE notice DROP KEY notice_state, DROP COLUMN slot, DROP COLUMN next_channels, DROP COLUMN not_after, DROP COLUMN ref,
  DROP COLUMN counted_on;
DELETE i FROM notice_item i JOIN notice_window w ON w.id = i.window_id WHERE w.kind <> 'expired';
DELETE FROM notice_window WHERE kind <> 'expired';
ALTER TABLE notice_item DROP KEY notice_item_coupon, DROP COLUMN template_id;
ALTER TABLE notice_window DROP KEY notice_window_open, DROP COLUMN slot, DROP COLUMN remind_at, DROP COLUMN late, DROP COLUMN notify_at,
  DROP COLUMN ends_at, ADD UNIQUE KEY notice_window_open (user_id, kind, open_mark);
ALTER TABLE coupon_template DROP COLUMN reminders;
