package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Names of the settings that verbs and planner share.
const (
	settingHorizon   = "horizon"
	settingGuard     = "guard"
	settingFrontier  = "frontier" // of the promotion; those of other plans end in a dot and the plan's name
	settingReminders = "reminders"
)

// frontierOf is where a plan's frontier is stored.
func frontierOf(plan string) string {
	if plan == coupon.PlanPromote {
		return settingFrontier
	}
	return settingFrontier + "." + plan
}

//nolint:gochecknoglobals // statements are constants
var (
	stmtSettingPlan = define("setting.plan", `SELECT name, value, updated_at FROM setting
		WHERE name IN ('horizon','guard','frontier','reminders') OR name >= 'frontier.' AND name < 'frontier/'`)
	stmtSettingPut = define("setting.put", `INSERT INTO setting (name, value, updated_at) VALUES (?,?,UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE updated_at = IF(value = VALUES(value), updated_at, VALUES(updated_at)), value = VALUES(value)`)
	stmtSettingDrop = define("setting.drop", `DELETE FROM setting WHERE name = ?`)
)

// planSettings is how far ahead triggers and reminders are published, as stored by the planner.
type planSettings struct {
	horizon  time.Duration // 0 = unlimited, also when nothing is stored yet
	since    time.Time     // when the horizon took this value
	guard    time.Duration
	frontier time.Time // end of the last walked slice; zero when there is none

	reminders *coupon.Reminders    // nil: none
	remindAge time.Time            // when they took this value
	frontiers map[string]time.Time // of other plans, by their names
}

func (s *Store) planSettings(ctx context.Context, q querier) (planSettings, error) {
	var p planSettings
	err := s.query(ctx, q, stmtSettingPlan, func(r *sql.Rows) error {
		var name, value string
		var at time.Time
		if err := r.Scan(&name, &value, &at); err != nil {
			return err
		}
		if name == settingReminders {
			p.reminders, p.remindAge = s.remind.read(value, s.log), at
			return nil
		}
		ms, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("setting %s: want milliseconds, got %q", name, value)
		}
		switch name {
		case settingHorizon:
			p.horizon, p.since = time.Duration(ms)*time.Millisecond, at
		case settingGuard:
			p.guard = time.Duration(ms) * time.Millisecond
		case settingFrontier:
			p.frontier = time.UnixMilli(ms).UTC()
		default:
			if p.frontiers == nil {
				p.frontiers = make(map[string]time.Time)
			}
			p.frontiers[strings.TrimPrefix(name, settingFrontier+".")] = time.UnixMilli(ms).UTC()
		}
		return nil
	})
	return p, err
}

// putSetting stores milliseconds; an equal value keeps its age.
func (s *Store) putSetting(ctx context.Context, q querier, name string, ms int64) error {
	_, err := s.exec(ctx, q, stmtSettingPut, name, strconv.FormatInt(ms, 10))
	return err
}
