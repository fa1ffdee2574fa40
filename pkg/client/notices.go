package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Notice is what a user was told in the app.
type Notice struct {
	ID         string     `json:"id"`        // to mark it as read by
	NoticeID   string     `json:"notice_id"` // as every channel has it
	Kind       string     `json:"kind"`      // expiring, expired; there may be more one day
	Display    string     `json:"display"`   // inbox or popup
	Title      string     `json:"title"`
	Text       string     `json:"text"`
	Items      int        `json:"items"` // coupons that it names
	CreatedAt  time.Time  `json:"created_at"`
	ValidUntil *time.Time `json:"valid_until"` // of a popup: not to be shown from then on
	ReadAt     *time.Time `json:"read_at"`     // nil: not yet
}

// NoticePage is part of a user's notices. It may have fewer than were asked for, even none, while more follow.
type NoticePage struct {
	Notices []Notice `json:"notices"`
	Next    string   `json:"next_page_token"` // for the next page; empty: there is none
}

// NoticesQuery asks for a page of a user's notices.
type NoticesQuery struct {
	Locale string // a BCP 47 tag; empty: the user's own, if it is known
	Limit  int    // 0: the server's default
	Page   string
}

// Notices gives a page of what a user was told in the app, newest first. Popups are not among them.
func (c *Client) Notices(ctx context.Context, userID string, q NoticesQuery) (out NoticePage, err error) {
	query := url.Values{}
	set(query, "locale", q.Locale)
	set(query, "page_token", q.Page)
	setLimit(query, q.Limit)
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"users", userID, "notices"}, query: query, into: &out})
	return out, err
}

// UnreadNotices counts what a user has not read; 1000 means so many or more.
func (c *Client) UnreadNotices(ctx context.Context, userID string) (int, error) {
	var out struct {
		Unread int `json:"unread"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: []string{"users", userID, "notices", "unread"}, into: &out})
	return out.Unread, err
}

// ReadNotices marks notices of a user as read, 900 at most, and gives how many were not before.
func (c *Client) ReadNotices(ctx context.Context, userID string, ids ...string) (int, error) {
	return c.readNotices(ctx, userID, map[string]any{"ids": ids})
}

// ReadNoticesUpTo marks a notice of a user and all older ones as read, and gives how many were not before.
func (c *Client) ReadNoticesUpTo(ctx context.Context, userID, id string) (int, error) {
	return c.readNotices(ctx, userID, map[string]any{"up_to": id})
}

func (c *Client) readNotices(ctx context.Context, userID string, body map[string]any) (int, error) {
	var out struct {
		Read int `json:"read"`
	}
	// The API knows a repeat by itself: what is read stays read.
	err := c.do(ctx, call{method: http.MethodPost, path: []string{"users", userID, "notices", "read"}, body: body, into: &out, mutates: true, known: true})
	return out.Read, err
}

// TakePopups gives a user's popups, each once, to whoever asks first; 0: as many as the server's default page. An answer that was
// lost is asked for again by the same key.
func (c *Client) TakePopups(ctx context.Context, userID, locale string, limit int) ([]Notice, error) {
	query := url.Values{}
	set(query, "locale", locale)
	setLimit(query, limit)
	var out struct {
		Popups []Notice `json:"popups"`
	}
	err := c.do(ctx, call{method: http.MethodPost, path: []string{"users", userID, "notices", "popups"}, query: query, into: &out, mutates: true})
	return out.Popups, err
}
