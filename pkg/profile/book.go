package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/secret"
)

// MaxSealed is how many bytes of sealed addresses the database takes.
const MaxSealed = 2048

// ErrTooLong says that addresses are too long together to be kept.
var ErrTooLong = errors.New("addresses: are too long together")

// Book seals and opens addresses. Safe for concurrent use.
type Book struct {
	keys *secret.Keyring
}

// NewBook makes a book with these keys; without any it keeps no addresses.
func NewBook(c secret.KeyringConfig) (*Book, error) {
	keys, err := secret.NewKeyring(c.Active, c.Keys)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	return &Book{keys: keys}, nil
}

// Keeps reports whether there is a key to seal with.
func (b *Book) Keeps() bool { return b.keys.Active() != "" }

// Seal takes the addresses out of the change and puts them in sealed, if there are any and a key is there. Errors: ErrTooLong.
func (b *Book) Seal(user string, p *coupon.ProfileChange) (dropped bool, err error) {
	a := p.Addresses
	p.Addresses, p.Sealed, p.Key = coupon.Addresses{}, nil, ""
	switch {
	case a == coupon.Addresses{}:
		return false, nil
	case !b.Keeps():
		return true, nil
	}
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false) // a push token may be full of what it would escape
	if err := enc.Encode(a); err != nil {
		return false, errors.New("addresses: cannot be written")
	}
	sealed, key, err := b.keys.Seal(user, bytes.TrimSuffix(plain.Bytes(), []byte("\n")))
	if err != nil {
		return false, err //nolint:wrapcheck // says all: there is no key
	}
	if len(sealed) > MaxSealed {
		return false, ErrTooLong
	}
	p.Sealed, p.Key = sealed, key
	return false, nil
}

// Addresses opens what a profile holds; nothing if it holds none. An error (secret.ErrNoKey, secret.ErrSealed) says that there are
// some which cannot be opened here.
func (b *Book) Addresses(p *coupon.Profile) (coupon.Addresses, error) {
	var a coupon.Addresses
	if len(p.Sealed) == 0 {
		return a, nil
	}
	plain, err := b.keys.Open(p.UserID, p.Key, p.Sealed)
	if err != nil {
		return a, fmt.Errorf("addresses sealed with key %q: %w", p.Key, err)
	}
	if json.Unmarshal(plain, &a) != nil { // its error would tell of the content
		return coupon.Addresses{}, fmt.Errorf("addresses sealed with key %q: %w", p.Key, secret.ErrSealed)
	}
	return a, nil
}

// reseal seals with the active key what another one sealed.
func (b *Book) reseal(s coupon.Sealed) (coupon.Sealed, error) {
	plain, err := b.keys.Open(s.UserID, s.Key, s.Addresses)
	if err != nil {
		return s, err //nolint:wrapcheck // counted, never shown
	}
	s.Addresses, s.Key, err = b.keys.Seal(s.UserID, plain)
	return s, err //nolint:wrapcheck // as above
}
