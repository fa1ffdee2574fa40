package coupon

import "context"

// Lender has something that others need, such as a place among those who may use the database. Work that comes to wait
// for something else lends it meanwhile, so that one coupon that is held does not keep others from theirs.
type Lender interface {
	Lend()
	Reclaim(ctx context.Context) error // waits for it; with an error it stays lent
}

type lenderKey struct{}

// WithLender tells work under ctx what to lend while it waits.
func WithLender(ctx context.Context, l Lender) context.Context {
	return context.WithValue(ctx, lenderKey{}, l)
}

// Lend lends what ctx has to lend; the work calls reclaim, once, before it goes on.
func Lend(ctx context.Context) (reclaim func(ctx context.Context) error) {
	l, ok := ctx.Value(lenderKey{}).(Lender)
	if !ok {
		return func(context.Context) error { return nil }
	}
	l.Lend()
	return l.Reclaim
}
