package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// A worker that starts waits for what passes by itself and ends for what does not; a batch is halved for what one of
// its rows is to blame for.
func TestServerErrorsHaveTheirClass(t *testing.T) {
	t.Parallel()
	s := testenv.NewDatabase(t).Store(t)
	for class, errs := range map[error][]mysql.MySQLError{
		coupon.ErrUnavailable: {
			{Number: 1203, SQLState: state("42000")},
			{Number: 1226, SQLState: state("42000")},
			{Number: 1317, SQLState: state("70100")},
			{Number: 3169, SQLState: state("HY000")},
			{Number: 4031, SQLState: state("HY000")},
			{Number: 1836, SQLState: state("HY000")},
			{Number: 1047, SQLState: state("08S01")},
			{Number: 1040, SQLState: state("08004")},
			{Number: 1045, SQLState: state("28000")},
		},
		coupon.ErrIntegrity: {
			{Number: 1062, SQLState: state("23000")},
			{Number: 1406, SQLState: state("22001")},
			{Number: 3819, SQLState: state("HY000")},
			{Number: 1644, SQLState: state("45000")},
		},
	} {
		for _, e := range errs {
			t.Run(fmt.Sprint(e.Number), func(t *testing.T) {
				t.Parallel()
				err := s.Tx(t.Context(), func(context.Context, *sql.Tx) error { return &e })
				require.ErrorIs(t, err, class)
			})
		}
	}
}

func state(s string) [5]byte { return [5]byte([]byte(s)) }
