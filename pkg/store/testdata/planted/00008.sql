-- An import that was cut over, and two of its coupons that were not: one is archived.
INSERT INTO import_source (name, observe, created_at, updated_at) VALUES ('old', 0, '2026-01-01', '2026-01-02');
INSERT INTO observation (coupon_id, due_at, decided_at, decision, cause) VALUES (5, '2026-01-02', '2026-01-02', 'expire', 'ladder');
INSERT INTO coupon_archive (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, observed, archived_at) VALUES
  (101, 1, 1, '', 'u1', 4, 2, '2025-01-01', '2025-01-02', '2025-01-02', '2025-01-01', 1, '2026-01-01');
UPDATE coupon SET observed = 1 WHERE id = 4;
