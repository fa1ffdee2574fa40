-- Rows that use what the schema of this version has: a template, coupons in each state, what issuing them left behind, and what the broker
-- still has to be told.
INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason) VALUES
  (1, 1, '国庆', '{"kind":"after","after":"24h"}', 500, 'CNY', 'exact', '2026-01-01', 'ann', 'launch');
INSERT INTO template_stock (template_id, revision, quota, per_user, taken, stopped) VALUES (1, 1, 100, 2, 5, 0);
INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, locked_at,
    lock_until, order_id, late_pay_policy, late_pay_window, used_at, expired_at, expire_cause) VALUES
  (1, 1, 1, 'b1', 'u1', 1, 1, '2026-01-01', '2026-01-02', '2026-01-02', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (2, 1, 1, 'b1', 'u1', 2, 2, '2026-01-01', '2026-01-02', '2026-01-02', '2026-01-01', '2026-01-01 12:00:00.123', '2026-01-01 12:30:00.123', 'o1',
    'honour_lock', 1800, NULL, NULL, NULL),
  (3, 1, 1, '', 'u2', 3, 2, '2026-01-01', '9999-12-31', '9999-12-31', '2026-01-01', NULL, NULL, 'o2', NULL, NULL, '2026-01-01 13:00:00', NULL, NULL),
  (4, 1, 1, '', 'u3', 4, 2, '2026-01-01', '2026-01-02', '2026-01-02', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL, '2026-01-02 00:00:00.05', 'ladder'),
  (5, 1, 1, '', 'u 4 ', 1, 1, '2026-01-01', '2999-01-02', '2999-01-02', '2026-01-01', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
  SELECT id, 1, 0, 1, 'grant', granted_at, expires_at, due_at, '', 'ann', 'launch', '', '', '' FROM coupon;
INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
  SELECT id, 2, 1, status, 'ladder', '2026-01-02', expires_at, due_at, COALESCE(order_id, ''), 'lapse', '', 'v1', 'ladder', '00-1' FROM coupon WHERE version = 2;
INSERT INTO grant_key (issuer, grant_key, coupon_id, content_hash)
  SELECT 'shop', CONCAT('k', id), id, UNHEX(SHA2(CONCAT(id, ''), 256)) FROM coupon;
INSERT INTO user_quota (template_id, user_id, taken) VALUES (1, 'u1', 2), (1, 'u 4 ', 1);
INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at) VALUES
  (0, 1, 1, 'v1:1', 'expire', 'x', '2026-01-02', '{}', '', 0, '2026-01-01'),
  (1, 4, 4, '4:2:expired', 'coupon.expired', ' ', NULL, X'00FF', '00-1', 2, '2026-01-02');
UPDATE outbox_part SET owner = 'pod', epoch = 7 WHERE part = 4;
INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at) VALUES
  (77, 1, 4, 4, '4:2:expired', 'coupon.expired', ' ', NULL, '{}', '', 'refused', '2026-01-02');
INSERT INTO setting (name, value, updated_at) VALUES ('horizon', '129600000', '2026-01-01');
