package ladder

// Definitions is the plan as RabbitMQ imports and exports it: POST /api/definitions/<vhost>, rabbitmqctl
// import_definitions, load_definitions. Marshal it as JSON.
type Definitions struct {
	Exchanges []ExchangeDefinition `json:"exchanges"`
	Queues    []QueueDefinition    `json:"queues"`
	Bindings  []BindingDefinition  `json:"bindings"`
}

// ExchangeDefinition is one exchange.
type ExchangeDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// QueueDefinition is one queue.
type QueueDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

// BindingDefinition is one binding.
type BindingDefinition struct {
	Source          string         `json:"source"`
	Vhost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// Definitions exports the plan for the vhost.
func (p Plan) Definitions(vhost string) Definitions {
	some := func(args map[string]any) map[string]any {
		if args == nil {
			return map[string]any{}
		}
		return args
	}
	d := Definitions{
		Exchanges: make([]ExchangeDefinition, 0, len(p.Exchanges)),
		Queues:    make([]QueueDefinition, 0, len(p.Queues)),
		Bindings:  make([]BindingDefinition, 0, len(p.Bindings)),
	}
	for _, e := range p.Exchanges {
		d.Exchanges = append(d.Exchanges, ExchangeDefinition{Name: e.Name, Vhost: vhost, Type: e.Type, Durable: true, Arguments: some(e.Args)})
	}
	for _, q := range p.Queues {
		d.Queues = append(d.Queues, QueueDefinition{Name: q.Name, Vhost: vhost, Durable: true, Arguments: some(q.Args)})
	}
	for _, b := range p.Bindings {
		kind := "queue"
		if b.ToExchange {
			kind = "exchange"
		}
		d.Bindings = append(d.Bindings, BindingDefinition{
			Source: b.Source, Vhost: vhost, Destination: b.Destination, DestinationType: kind, RoutingKey: b.Key, Arguments: map[string]any{},
		})
	}
	return d
}
