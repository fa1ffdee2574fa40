package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// damages are what the judge must find, by the class of its findings: statements that hurt one coupon when everything has settled.
func damages() map[string][]string {
	const waits = ` WHERE id = (SELECT id FROM (SELECT MIN(id) AS id FROM coupon WHERE status = 1 AND due_at > UTC_TIMESTAMP(3) + INTERVAL 10 MINUTE) x)`
	const ended = ` (SELECT MIN(coupon_id) FROM coupon_history WHERE from_status = 1 AND to_status = 4)`
	const copied = `INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)`
	return map[string][]string{
		"early": {
			copied + ` SELECT id, version + 1, 1, 4, 'ladder', UTC_TIMESTAMP(3), expires_at, due_at, '', '', '', '', 'ladder', '' FROM coupon` + waits,
			`UPDATE coupon SET status = 4, version = version + 1, expired_at = UTC_TIMESTAMP(3), expire_cause = 'ladder'` + waits,
		},
		"lost":        {`DELETE FROM coupon WHERE id =` + ` (SELECT c FROM (SELECT MIN(coupon_id) AS c FROM coupon_history WHERE to_status = 3) x)`},
		"doubled":     {copied + ` SELECT coupon_id, version + 1, from_status, to_status, cause, at, expires_at, due_at, '', '', '', '', '', '' FROM coupon_history WHERE to_status = 4 AND from_status = 1 AND coupon_id = (SELECT c FROM (SELECT` + ended + ` AS c) x)`},
		"wrong_state": {`UPDATE coupon SET status = 3 WHERE id =` + ended},
		"notices_doubled": {
			`INSERT INTO notice_item (window_id, event_id, coupon_id, template_id, version, expires_at, value, currency, dropped, added_at)
				SELECT (SELECT MAX(window_id) FROM notice WHERE channel = 'inbox'), CONCAT(event_id, 'x'), coupon_id, template_id, version, expires_at, value, currency, dropped, added_at
				FROM notice_item WHERE dropped = '' AND window_id = (SELECT MIN(window_id) FROM notice WHERE channel = 'inbox') LIMIT 1`,
		},
		"stuck": {
			`UPDATE coupon SET status = 1, expired_at = NULL, version = version - 1 WHERE id =` + ended,
			`DELETE FROM coupon_history WHERE from_status = 1 AND to_status = 4 AND coupon_id = (SELECT c FROM (SELECT` + ended + ` AS c) x)`,
		},
	}
}

// Sabotages names the damages that a run can be given; each must make it fail.
func Sabotages() []string { return slices.Sorted(maps.Keys(damages())) }

// damage stops the fleet, which would mend some of it, and does it.
func (s *site) damage(ctx context.Context, name string) error {
	s.cfg.View.Step("sabotage: " + name)
	for _, w := range workers() {
		s.away(w, true)
	}
	if err := s.fleet().Stop(ctx); err != nil {
		return err
	}
	for i, statement := range damages()[name] {
		result, err := s.db.ExecContext(ctx, statement)
		if err != nil {
			return fmt.Errorf("sabotage %s, statement %d: %w", name, i+1, err)
		}
		n, err := result.RowsAffected()
		if err == nil && n == 0 {
			err = errors.New("it met no row")
		}
		if err != nil {
			return fmt.Errorf("sabotage %s, statement %d: %w", name, i+1, err)
		}
	}
	return nil
}
