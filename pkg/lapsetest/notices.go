package lapsetest

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Nobody is told anything here: the inboxes are there, and empty.

// Inbox has nothing.
func (m *memory) Inbox(context.Context, string, uint64, int) (items []coupon.InboxItem, next uint64, err error) {
	return nil, 0, m.reachable()
}

// InboxUnread counts nothing.
func (m *memory) InboxUnread(context.Context, string) (int, error) { return 0, m.reachable() }

// InboxRead marks nothing.
func (m *memory) InboxRead(context.Context, string, []uint64, uint64) (int, error) {
	return 0, m.reachable()
}

// TakePopups hands nothing out.
func (m *memory) TakePopups(context.Context, string, int) ([]coupon.InboxItem, error) {
	return nil, m.reachable()
}

// Profiles knows nobody.
func (m *memory) Profiles(context.Context, []string) (map[string]coupon.Profile, error) {
	return nil, m.reachable()
}

// NoticeReceipts knows of no notice.
func (m *memory) NoticeReceipts(_ context.Context, rs []coupon.Receipt) ([]bool, error) {
	return make([]bool, len(rs)), m.reachable()
}

// NoticeUser knows of no notice.
func (m *memory) NoticeUser(_ context.Context, window uint64, _ coupon.Channel) (string, error) {
	if err := m.reachable(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("notice %d: %w", window, coupon.ErrNotFound)
}

// OptOut is taken, and nobody is told anything anyway.
func (m *memory) OptOut(context.Context, string, coupon.OptOut) error { return m.reachable() }

func (m *memory) reachable() error {
	if m.outage.Load() {
		return coupon.ErrUnavailable
	}
	return nil
}
