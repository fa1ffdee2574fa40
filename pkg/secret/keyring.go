package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// KeyringConfig names the keys that addresses are sealed with. No keys at all: nothing can be sealed.
type KeyringConfig struct {
	// Active is the id of the key that seals. The others open what they sealed.
	Active string `koanf:"active"`
	// Keys by id: 32 random bytes each, in base64, as `openssl rand -base64 32` prints them.
	Keys map[string]String `koanf:"keys"`
}

// Validate reports every fault, each beginning with the field's name. A key is never shown.
func (c KeyringConfig) Validate() error {
	_, err := NewKeyring(c.Active, c.Keys)
	return err
}

const keySize = 32 // bytes

// What Open answers. Neither says anything of the content.
var (
	// ErrNoKey: the key that sealed it is not in the ring; for Seal, there is no active key.
	ErrNoKey = errors.New("the key is not in the ring")
	// ErrSealed: it is not what the key sealed for that user.
	ErrSealed = errors.New("cannot be opened: damaged, of another user, or sealed with another key of that id")
)

// The id is short enough for its column, and neither a dot nor an underscore pair, which config takes for a path.
var keyPattern = regexp.MustCompile(`^[a-z0-9]+([_-][a-z0-9]+)*$`)

const maxKeyID = 32 // bytes

// Keyring seals what is personal, with AES-256-GCM under the active key. What it seals belongs to one user and opens for no
// other: the user's id is authenticated with it. Immutable and safe for concurrent use.
//
// Nonces are random: seal at most 2^32 times with one key, then rotate.
type Keyring struct {
	active string
	keys   map[string]cipher.AEAD
}

// NewKeyring makes a ring. Keys are 32 bytes in base64, by their ids; active is one of them. Without keys active is empty,
// and the ring seals nothing. Errors begin with active or keys and never show a key.
func NewKeyring(active string, keys map[string]String) (*Keyring, error) {
	r := &Keyring{active: active, keys: make(map[string]cipher.AEAD, len(keys))}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		aead, err := newAEAD(id, keys[id])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.keys[id] = aead
	}
	if _, there := keys[active]; !there && (active != "" || len(keys) > 0) {
		errs = append(errs, fmt.Errorf("active: must be the id of one of keys, got %q", active))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

func newAEAD(id string, key String) (cipher.AEAD, error) {
	if len(id) > maxKeyID || !keyPattern.MatchString(id) {
		return nil, fmt.Errorf("keys: an id must have at most %d of a-z, 0-9, and single - and _ between them, got %q", maxKeyID, id)
	}
	raw, err := base64.StdEncoding.DecodeString(key.Reveal())
	if err != nil || len(raw) != keySize {
		return nil, fmt.Errorf("keys: %s must be %d bytes in base64", id, keySize) // not the error: it tells bytes of the key
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", id, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", id, err)
	}
	return aead, nil
}

// Active is the id of the key that seals; empty: there is none.
func (r *Keyring) Active() string { return r.active }

// Seal encrypts for the user, and says with which key. Errors: ErrNoKey.
func (r *Keyring) Seal(user string, plain []byte) (sealed []byte, key string, err error) {
	aead, ok := r.keys[r.active]
	if !ok {
		return nil, "", ErrNoKey
	}
	return aead.Seal(nil, nil, plain, bound(user, r.active)), r.active, nil //nolint:gosec // the AEAD makes the nonce
}

// Open decrypts what was sealed for the user with that key. Errors: ErrNoKey, ErrSealed.
func (r *Keyring) Open(user, key string, sealed []byte) ([]byte, error) {
	aead, ok := r.keys[key]
	if !ok {
		return nil, ErrNoKey
	}
	plain, err := aead.Open(nil, nil, sealed, bound(user, key))
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}

// bound is what is authenticated beside the content: ids of keys hold no NUL.
func bound(user, key string) []byte { return []byte("lapse:1:" + key + "\x00" + user) }

// String shows no key.
func (r *Keyring) String() string {
	return fmt.Sprintf("keyring of %d keys, active %q", len(r.keys), r.active)
}

// GoString shows no key.
func (r *Keyring) GoString() string { return r.String() }
