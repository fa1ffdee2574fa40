package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The relays share the partitions by leases in outbox_part. A relay that owns none is seen by its announcement in
// setting, so that the others know that it waits for its share.
//
// What a lease guarantees: nothing about exclusion. A relay that stalled between reading and publishing may publish
// rows that the next owner has published as well: a repeat, with the same message id. It cannot lose a row (rows go by
// confirmed id) nor put one coupon's events out of their order: whoever owns the partition publishes a coupon's next
// row only after its own confirm of the one before, or after another's confirm had that one deleted, so the first
// appearances are in order.
const announcement = "relay."

//nolint:gochecknoglobals // statements are constants
var (
	stmtLeaseRenew = define("outbox.lease_renew", `UPDATE outbox_part SET lease_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)) WHERE owner = ?`)
	stmtLeaseList  = define("outbox.lease_list", `SELECT part, owner, lease_until > UTC_TIMESTAMP(3), epoch FROM outbox_part ORDER BY part`)
	stmtLeaseTake  = define("outbox.lease_take", `UPDATE outbox_part SET owner = ?, lease_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), epoch = epoch + 1
		WHERE part = ? AND epoch = ? AND lease_until <= UTC_TIMESTAMP(3)`)
	stmtLeaseFree = define("outbox.lease_free", `UPDATE outbox_part SET owner = '', lease_until = UTC_TIMESTAMP(3) WHERE owner = ? AND part IN (?)`)
	stmtRelayAsk  = define("outbox.relay_announce", `INSERT INTO setting (name, value, updated_at) VALUES (?, ?, UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE value = VALUES(value), updated_at = VALUES(updated_at)`)
	stmtRelayList = define("outbox.relay_list", `SELECT name FROM setting WHERE name > 'relay.' AND name < 'relay/'
		AND TIMESTAMPADD(MICROSECOND, CAST(value AS SIGNED), updated_at) > UTC_TIMESTAMP(3)`)
	stmtRelayLeave = define("outbox.relay_leave", `DELETE FROM setting WHERE name = ?`)
)

type partLease struct {
	part  int
	owner string
	live  bool
	epoch uint64
}

// ClaimParts renews what owner holds and takes, up to its fair share, partitions that are free or whose lease has run
// out; each by compare-and-set on the epoch. It must be called well within every lease. Owner names must be unique
// among processes, dead ones included.
//
// The share is 16 divided by the live relays; the remainder goes to the first of them by name, so that all relays,
// seeing the same table, agree on it. What owner holds beyond its share is reported as Surplus: ReleaseParts gives it
// up when nothing read from it is under way any more.
func (s *Store) ClaimParts(ctx context.Context, owner string, lease time.Duration) (coupon.OutboxClaim, error) {
	var claim coupon.OutboxClaim
	err := s.tx(ctx, "claim outbox partitions", func(ctx context.Context, tx *txn) error {
		held, err := s.exec(ctx, tx, stmtLeaseRenew, lease.Microseconds(), []byte(owner))
		if err != nil {
			return err
		}
		if held == 0 {
			if _, err := s.exec(ctx, tx, stmtRelayAsk, []byte(announcement+owner), lease.Microseconds()); err != nil {
				return err
			}
		}
		leases, err := s.leases(ctx, tx)
		if err != nil {
			return err
		}
		live, err := s.liveRelays(ctx, tx, owner, leases)
		if err != nil {
			return err
		}
		claim, err = s.takeShare(ctx, tx, owner, lease, leases, live)
		return err
	})
	return claim, err
}

func (s *Store) leases(ctx context.Context, q querier) ([]partLease, error) {
	var ls []partLease
	err := s.query(ctx, q, stmtLeaseList, func(r *sql.Rows) error {
		var l partLease
		if err := r.Scan(&l.part, &l.owner, &l.live, &l.epoch); err != nil {
			return err
		}
		ls = append(ls, l)
		return nil
	})
	return ls, err
}

// liveRelays gives the names of all live relays in order, owner among them.
func (s *Store) liveRelays(ctx context.Context, q querier, owner string, leases []partLease) ([]string, error) {
	live := []string{owner}
	for _, l := range leases {
		if l.live && l.owner != "" {
			live = append(live, l.owner)
		}
	}
	err := s.query(ctx, q, stmtRelayList, func(r *sql.Rows) error {
		var name string
		if err := r.Scan(&name); err != nil {
			return err
		}
		live = append(live, name[len(announcement):])
		return nil
	})
	slices.Sort(live)
	return slices.Compact(live), err
}

// fairShare divides the partitions among n relays; the first ones by rank get what is left over.
func fairShare(rank, n int) int {
	share := coupon.Partitions / n
	if rank < coupon.Partitions%n {
		share++
	}
	return share
}

func (s *Store) takeShare(ctx context.Context, tx *txn, owner string, lease time.Duration, leases []partLease, live []string) (
	coupon.OutboxClaim, error,
) {
	claim := coupon.OutboxClaim{Live: len(live)}
	rank, _ := slices.BinarySearch(live, owner)
	share := fairShare(rank, len(live))
	for _, l := range leases {
		if l.owner == owner {
			claim.Parts = append(claim.Parts, l.part)
		}
	}
	if extra := len(claim.Parts) - share; extra > 0 {
		claim.Surplus = slices.Clone(claim.Parts[share:])
		return claim, nil
	}
	for _, l := range leases {
		if len(claim.Parts) >= share {
			break
		}
		if l.live || l.owner == owner {
			continue
		}
		n, err := s.exec(ctx, tx, stmtLeaseTake, []byte(owner), lease.Microseconds(), l.part, l.epoch)
		if err != nil {
			return claim, err
		}
		if n == 1 {
			claim.Parts = append(claim.Parts, l.part)
		}
	}
	slices.Sort(claim.Parts)
	return claim, nil
}

// ReleaseParts gives partitions up at once. Those that owner does not hold are left alone.
func (s *Store) ReleaseParts(ctx context.Context, owner string, parts []int) error {
	if len(parts) == 0 {
		return nil
	}
	args := []any{[]byte(owner)}
	for _, p := range parts {
		args = append(args, p)
	}
	if _, err := s.exec(ctx, s.sql, stmtLeaseFree.in(len(parts)), args...); err != nil {
		return fmt.Errorf("release outbox partitions: %w", err)
	}
	return nil
}

// LeaveParts gives everything up that owner holds, and its announcement: it is gone.
func (s *Store) LeaveParts(ctx context.Context, owner string) error {
	all := make([]int, coupon.Partitions)
	for i := range all {
		all[i] = i
	}
	if err := s.ReleaseParts(ctx, owner, all); err != nil {
		return err
	}
	if _, err := s.exec(ctx, s.sql, stmtRelayLeave, []byte(announcement+owner)); err != nil {
		return fmt.Errorf("leave outbox: %w", err)
	}
	return nil
}
