-- A brake is on, a bulk change stands half-way, and a coupon was given back.
INSERT INTO grant_held (template_id, batch_id, body, created_at) VALUES (1, 'b2', '{}', '2026-01-01');
INSERT INTO operation (kind, ask_hash, ask, progress, done, owner, lease_until, epoch, created_at, updated_at) VALUES
  ('extend', UNHEX(SHA2('a', 256)), '{}', '{}', 0, 'pod', '2026-01-01', 1, '2026-01-01', '2026-01-01');
UPDATE template_stats SET reinstated = 1, reinstated_value = 500 WHERE day = '2026-01-02';
UPDATE template_stock SET reinstated = 1 WHERE template_id = 1;
INSERT INTO setting (name, value, updated_at) VALUES ('pause.notices', '{}', '2026-01-01');
