package store_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestWhatOperatorsDidIsKept(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	require.NoError(t, s.RecordDeed(t.Context(), store.Deed{Actor: "amy", Reason: "told so", Action: "a.one", Subject: "q", Detail: map[string]int{"n": 3}}))
	require.NoError(t, s.RecordDeed(t.Context(), store.Deed{Actor: "bob", Reason: "again", Action: "a.one"}))
	require.NoError(t, s.RecordDeed(t.Context(), store.Deed{Actor: "bob", Reason: "else", Action: "a.two"}))
	deeds, err := s.Deeds(t.Context(), "a.one", 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 2)
	require.Equal(t, "bob", deeds[0].Actor)
	require.Equal(t, []any{"amy", "told so", "q", json.RawMessage(`{"n":3}`)}, []any{deeds[1].Actor, deeds[1].Reason, deeds[1].Subject, deeds[1].Detail})
	deeds, err = s.Deeds(t.Context(), "a.one", deeds[0].ID, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 1)
	require.ErrorContains(t, s.RecordDeed(t.Context(), store.Deed{Action: "a.one"}), `actor: must have 1 to 128 bytes of UTF-8, got ""`)
}
