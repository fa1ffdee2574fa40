-- The planner stands somewhere.
UPDATE plan_slice SET slice_start = '2026-01-01', slice_end = '2026-01-02', cursor_at = '2026-01-01 12:00:00', cursor_id = 4, owner = 'pod', epoch = 3;
