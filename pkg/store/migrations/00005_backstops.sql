-- What operators did by hand, and why: replays, discards, repairs, rebuilds, acceptances of a clock. Whoever asks
-- afterwards finds actor and reason beside the instant.

-- +goose Up

-- detail is JSON: counts, filters. Pruned by nobody: people act seldom.
CREATE TABLE operator_log (
  id      BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  at      DATETIME(3)     NOT NULL,
  actor   VARCHAR(128)    NOT NULL,
  reason  VARCHAR(255)    NOT NULL,
  action  VARCHAR(64)     NOT NULL,
  subject VARBINARY(200)  NOT NULL,
  detail  BLOB            NOT NULL,
  PRIMARY KEY (id),
  KEY operator_log_action (action, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE operator_log;
