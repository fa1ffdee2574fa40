-- A window that gathers, and one that was told.
INSERT INTO notice_window (id, user_id, kind, open_mark, items, opened_at, last_item_at, due_at, closed_at, closed_by) VALUES
  (1, 'u3', 'expired', NULL, 1, '2026-01-02', '2026-01-02', '9999-12-31', '2026-01-02 00:00:05', 'quiet'),
  (2, 'u3', 'expired', 1, 1, '2026-01-03', '2026-01-03', '2999-01-03', NULL, '');
INSERT INTO notice_item (window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at) VALUES
  (1, 'lapse:4:2:expired', 4, 2, '2026-01-02', 500, 'CNY', '', '2026-01-02'),
  (2, 'lapse:9:2:expired', 9, 2, '2026-01-03', 500, 'CNY', 'reinstated', '2026-01-03');
INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at, settled_at) VALUES
  (1, 'inbox', 'u3', 'expired', 1, 'sent', '', 1, '9999-12-31', '2026-01-02', '2026-01-02');
INSERT INTO inbox (user_id, window_id, kind, items, texts, created_at, read_at) VALUES
  ('u3', 1, 'expired', 1, '{"en":{"title":"t","text":"x"}}', '2026-01-02', NULL);
