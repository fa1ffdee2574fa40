-- An offer with terms of its own, a moved end, and what orders, statistics and the archive keep.
INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason,
    late_pay_policy, late_pay_window, quota_back, offer, basis_points, cap, min_spend, scopes) VALUES
  (2, 1, '一成', '{"kind":"never"}', 0, 'CNY', 'standard', '2026-01-01', 'ann', '', 'strict', 60, 'total', 'percent', 1000, 5000, 100, '["food"]');
INSERT INTO template_stock (template_id, revision, quota, per_user, taken, stopped) VALUES (2, 1, 0, 0, 0, 0);
UPDATE coupon_history SET lock_until = '2026-01-01 12:30:00.123' WHERE coupon_id = 2 AND version = 2;
UPDATE coupon_history SET previous = '2026-01-03' WHERE coupon_id = 5;
INSERT INTO quota_return (coupon_id, template_id, user_id, to_user, created_at) VALUES (4, 1, 'u3', 1, '2026-01-02');
INSERT INTO template_stats (template_id, day, granted, expired, granted_value, expired_value) VALUES (1, '2026-01-01', 5, 0, 2500, 0), (1, '2026-01-02', 0, 1, 0, 500);
INSERT INTO ledger_seen (coupon_id, version) VALUES (1, 1), (4, 1), (4, 2);
INSERT INTO order_tombstone (coupon_id, order_id, closed, refunded, created_at) VALUES (3, 'o3', 1, 0, '2026-01-02');
INSERT INTO idempotency_key (caller, idem_key, body_hash, status, answer, lease_until, created_at) VALUES
  ('shop', 'i1', UNHEX(SHA2('i1', 256)), 200, '{}', '2026-01-01', '2026-01-01');
INSERT INTO coupon_archive (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, used_at, order_id, archived_at) VALUES
  (100, 1, 1, '', 'u1', 3, 2, '2025-01-01', '2025-01-02', '2025-01-02', '2025-01-01', '2025-01-01', 'o9', '2026-01-01');
INSERT INTO coupon_history_archive (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace, lock_until, previous) VALUES
  (100, 1, 0, 1, 'grant', '2025-01-01', '2025-01-02', '2025-01-02', '', '', '', '', '', '', NULL, NULL),
  (100, 2, 1, 3, 'order', '2025-01-01', '2025-01-02', '2025-01-02', 'o9', '', '', '', '', '', NULL, NULL);
INSERT INTO setting (name, value, updated_at) VALUES ('ledger.seed', 'done', '2026-01-01');
