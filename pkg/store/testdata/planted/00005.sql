-- Somebody acted.
INSERT INTO operator_log (at, actor, reason, action, subject, detail) VALUES ('2026-01-01', 'ann', 'try', 'rebuild', 'all', '{"coupons":5}');
