package rig

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// Account is a user of our own in both servers, until it is dropped.
type Account struct {
	Name, Password string
}

// MakeDatabaseUser makes a user of the database with these grants (see store.Grants, with host %).
func (s Stack) MakeDatabaseUser(ctx context.Context, a Account, grants []string) error {
	statements := append([]string{
		fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", a.Name, a.Password),
	}, grants...)
	return s.asRoot(ctx, statements)
}

// Grant runs grants.
func (s Stack) Grant(ctx context.Context, grants []string) error { return s.asRoot(ctx, grants) }

// DropDatabaseUser drops it, if it is there.
func (s Stack) DropDatabaseUser(ctx context.Context, name string) error {
	return s.asRoot(ctx, []string{fmt.Sprintf("DROP USER IF EXISTS '%s'@'%%'", name)})
}

// asRoot runs statements as the database's root. Its errors show none: they hold passwords.
func (s Stack) asRoot(ctx context.Context, statements []string) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	db, err := sql.Open("mysql", s.RootDSN.Reveal())
	if err != nil {
		return errors.New("STACK_MYSQL_ROOT_DSN is malformed")
	}
	defer func() { _ = db.Close() }() // nothing to lose
	for i, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("accounts of the database, statement %d: %w", i+1, err)
		}
	}
	return nil
}

// MakeBrokerUser makes a user of the broker, or changes it, with permissions in the stack's vhost.
func (s Stack) MakeBrokerUser(ctx context.Context, a Account, p ladder.Permissions) error {
	err := s.Put(ctx, "/api/users/"+url.PathEscape(a.Name), map[string]string{"password": a.Password, "tags": ""})
	if err != nil {
		return err
	}
	return s.Permit(ctx, s.vhost(), a.Name, p)
}

// Permit sets the permissions of a broker's user in a vhost.
func (s Stack) Permit(ctx context.Context, vhost, user string, p ladder.Permissions) error {
	return s.Put(ctx, "/api/permissions/"+url.PathEscape(vhost)+"/"+url.PathEscape(user),
		map[string]string{"configure": p.Configure, "write": p.Write, "read": p.Read})
}

// DropBrokerUser drops it, if it is there.
func (s Stack) DropBrokerUser(ctx context.Context, name string) error {
	return s.Delete(ctx, "/api/users/"+url.PathEscape(name))
}

// Put puts something of the broker's management API in place.
func (s Stack) Put(ctx context.Context, path string, body any) error {
	return s.change(ctx, http.MethodPut, path, body)
}

// Delete removes something, if it is there.
func (s Stack) Delete(ctx context.Context, path string) error {
	return s.change(ctx, http.MethodDelete, path, nil)
}

func (s Stack) change(ctx context.Context, method, path string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("asking the management API: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.ManagementURL.Reveal()+path, bytes.NewReader(text))
	if err != nil {
		return errors.New("making the request failed: the management URL is malformed")
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the URL, which holds the password
		}
		return fmt.Errorf("asking the management API: %w", err)
	}
	if err := res.Body.Close(); err != nil {
		return fmt.Errorf("asking the management API: %w", err)
	}
	gone := method == http.MethodDelete && res.StatusCode == http.StatusNotFound
	if res.StatusCode >= http.StatusMultipleChoices && !gone {
		return fmt.Errorf("the management API answered %s to %s %s", res.Status, method, path)
	}
	return nil
}
