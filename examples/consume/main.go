// Command consume keeps a table of what became of coupons, from the events that Lapse publishes: a consumer to copy.
//
//	go run ./examples/consume -amqp amqp://user:password@localhost:5672/lapse -dsn 'user:password@tcp(localhost:3306)/shop'
//
// It shows the three things that every consumer has to do: drop repeats by source and id, in the transaction of the effect; take
// events of one coupon in any order, by version; acknowledge after the commit, and put aside what cannot be read.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql" // database/sql's driver
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	prefetch = 50
	perEvent = 10 * time.Second
	// Seen rows may be deleted once no event can come again: Lapse replays what an operator asks for, so keep them for as long as
	// you would want a replay to be harmless.
	schema = `CREATE TABLE IF NOT EXISTS lapse_seen (
		source VARBINARY(255) NOT NULL, id VARBINARY(255) NOT NULL, at DATETIME(3) NOT NULL, PRIMARY KEY (source, id));
	CREATE TABLE IF NOT EXISTS coupon_fate (
		coupon_id BIGINT UNSIGNED NOT NULL PRIMARY KEY, version INT UNSIGNED NOT NULL, fate VARCHAR(64) NOT NULL, at DATETIME(3) NOT NULL)`
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "consume:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("consume", flag.ContinueOnError)
	url := flags.String("amqp", "amqp://localhost:5672/lapse", "RabbitMQ, with Lapse's vhost")
	dsn := flags.String("dsn", "", "your MySQL database")
	exchange := flags.String("exchange", "lapse.events", "Lapse's exchange: its prefix and .events")
	queue := flags.String("queue", "shop.coupons", "your queue")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil // it was told
	} else if err != nil {
		return err
	}
	db, err := open(ctx, *dsn)
	if err != nil {
		return fmt.Errorf("the database: %w", err)
	}
	defer db.Close() //nolint:errcheck // the process ends
	conn, err := amqp.DialConfig(*url, amqp.Config{Heartbeat: 10 * time.Second, Properties: amqp.Table{"connection_name": "shop"}})
	if err != nil {
		return fmt.Errorf("RabbitMQ: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the process ends
	ch, deliveries, err := listen(conn, *exchange, *queue)
	if err != nil {
		return fmt.Errorf("queue %s: %w", *queue, err)
	}
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	_, _ = fmt.Fprintln(out, "listening on", *queue)
	for {
		select {
		case <-ctx.Done():
			return nil // what is not acknowledged comes again
		case err := <-lost:
			return fmt.Errorf("the channel: %w", err) // start again, by the supervisor: a consumer that lives without one hears nothing
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the consumer was cancelled")
			}
			if err := settle(ctx, db, d, out); err != nil {
				return err
			}
		}
	}
}

func open(ctx context.Context, dsn string) (*sql.DB, error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	for statement := range strings.SplitSeq(schema, ";") {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// listen declares a queue of the shop's own: durable, replicated, with a place for what cannot be handled. Lapse declares nothing for
// its listeners, and does not know them.
func listen(conn *amqp.Connection, exchange, queue string) (*amqp.Channel, <-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	parked := queue + ".parked"
	if _, err := ch.QueueDeclare(parked, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return nil, nil, err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int32(20), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": parked,
	}); err != nil {
		return nil, nil, err
	}
	for _, key := range []string{"coupon.expired", "coupon.used", "coupon.refunded", "coupon.voided", "coupon.reinstated"} {
		if err := ch.QueueBind(queue, key, exchange, false, nil); err != nil {
			return nil, nil, err
		}
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, nil, err
	}
	deliveries, err := ch.Consume(queue, "shop", false, false, false, false, nil)
	return ch, deliveries, err
}

// cloudEvent is an event of Lapse's; fields that are not needed are not named, and new ones do not matter.
type cloudEvent struct {
	Source string `json:"source"`
	ID     string `json:"id"`
	Type   string `json:"type"`
	Data   struct {
		CouponID uint64 `json:"coupon_id,string"`
		Version  uint32 `json:"version"`
	} `json:"data"`
}

// settle handles one delivery to its end. An error is the database's: the delivery goes back, and the process ends.
func settle(ctx context.Context, db *sql.DB, d amqp.Delivery, out io.Writer) error {
	var e cloudEvent
	if err := json.Unmarshal(d.Body, &e); err != nil || e.Source == "" || e.ID == "" || e.Data.CouponID == 0 {
		return d.Nack(false, false) // it will never be readable: to the parked ones
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), perEvent) // the one in hand is finished
	defer cancel()
	fresh, err := apply(ctx, db, e)
	if err != nil {
		return errors.Join(fmt.Errorf("event %s: %w", e.ID, err), d.Nack(false, true))
	}
	if fresh {
		_, _ = fmt.Fprintln(out, "coupon", e.Data.CouponID, e.Type)
	}
	return d.Ack(false) // after the commit
}

// apply does what the event is for, once: false says that it was done before.
func apply(ctx context.Context, db *sql.DB, e cloudEvent) (bool, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	res, err := tx.ExecContext(ctx, `INSERT IGNORE INTO lapse_seen (source, id, at) VALUES (?,?,UTC_TIMESTAMP(3))`, e.Source, e.ID)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	// An older event that comes later does not undo a newer one: the version decides, not the order of arrival.
	if _, err := tx.ExecContext(ctx, `INSERT INTO coupon_fate (coupon_id, version, fate, at) VALUES (?,?,?,UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE fate = IF(VALUES(version) > version, VALUES(fate), fate), version = GREATEST(version, VALUES(version))`,
		e.Data.CouponID, e.Data.Version, e.Type); err != nil {
		return false, err
	}
	return true, tx.Commit()
}
