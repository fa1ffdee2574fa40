-- Reminders, channels with addresses, and what is known of users.
INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason, reminders) VALUES
  (1, 2, '国庆', '{"kind":"after","after":"24h"}', 500, 'CNY', 'exact', '2026-01-01', 'ann', 'reminded', '-3d,-30m');
INSERT INTO notice_window (id, user_id, kind, slot, remind_at, open_mark, late, items, opened_at, last_item_at, due_at, notify_at, ends_at, closed_at, closed_by) VALUES
  (3, 'u 4 ', 'expiring', '-3d 2999-01-02', '-3d', 1, 0, 1, '2026-01-03', '2026-01-03', '2998-12-30', '2998-12-30', '2999-01-02', NULL, ''),
  (4, 'u3', 'expired', '', '', NULL, 1, 1, '2026-01-04', '2026-01-04', '9999-12-31', NULL, NULL, '2026-01-04', 'quiet');
INSERT INTO notice_item (window_id, event_id, coupon_id, template_id, version, expires_at, value, currency, dropped, added_at) VALUES
  (3, 'lapse:5:1:expiring:-3d', 5, 1, 1, '2999-01-02', 500, 'CNY', '', '2026-01-03'),
  (4, 'lapse:10:2:expired', 10, 1, 2, '2026-01-04', 500, 'CNY', '', '2026-01-04');
INSERT INTO notice (window_id, channel, user_id, kind, slot, items, state, reason, next_channels, attempts, try_at, not_after, created_at, settled_at, ref, counted_on) VALUES
  (3, 'sms', 'u 4 ', 'expiring', '-3d 2999-01-02', 1, 'pending', '', 'push', 0, '2998-12-30', '2999-01-02', '2026-01-03', NULL, '', NULL),
  (4, 'email', 'u3', 'expired', '', 1, 'delivered', '', '', 1, '9999-12-31', '2026-01-09', '2026-01-04', '2026-01-04', 'p-1', '2026-01-04');
INSERT INTO notice_count (user_id, channel, day, sent) VALUES ('u3', 'email', '2026-01-04', 1);
INSERT INTO inbox (user_id, window_id, kind, display, items, texts, created_at, valid_until, read_at, handed_at) VALUES
  ('u3', 1, 'expired', 'popup', 1, '{"en":{"title":"t","text":"x"}}', '2026-01-02', '2026-01-09', '2026-01-03', '2026-01-03');
INSERT INTO user_profile (user_id, locale, zone, addresses, address_key, profile_at, seen_at) VALUES
  ('u3', 'zh-CN', 'Asia/Shanghai', X'00FF10', 'k1', '2026-01-01', '2026-01-02');
INSERT INTO user_optout (user_id, channel, kind, out_mark, source, decided_at) VALUES ('u3', 'sms', '*', 1, 'api', '2026-01-01');
