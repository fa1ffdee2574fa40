-- The planner's place: one row per plan, the slice being walked, its cursor and who walks it.

-- +goose Up

-- Pruned by nobody: one row per plan.
CREATE TABLE plan_slice (
  plan        VARBINARY(32)   NOT NULL,
  slice_start DATETIME(3)     NOT NULL,
  slice_end   DATETIME(3)     NOT NULL,
  cursor_at   DATETIME(3)     NOT NULL,
  cursor_id   BIGINT UNSIGNED NOT NULL,
  owner       VARBINARY(64)   NOT NULL,
  lease_until DATETIME(3)     NOT NULL,
  epoch       BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (plan)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO plan_slice (plan, slice_start, slice_end, cursor_at, cursor_id, owner, lease_until, epoch)
VALUES ('promote', '1970-01-02', '1970-01-02', '1970-01-02', 0, '', '1970-01-02', 0);

-- +goose Down
DROP TABLE plan_slice;
