package broker

// contentTypeEvent is event.ContentType, which this level does not import.
const contentTypeEvent = "application/cloudevents+json"

// Event is the message of an event of ours. One that nobody listens to is dropped by design, and counted.
func Event(exchange, key, id, trace string, body []byte) Message {
	m := Message{Exchange: exchange, Key: key, ID: id, Body: body, ContentType: contentTypeEvent, Mandatory: true, Optional: true}
	if trace != "" {
		m.Headers = map[string]any{HeaderTrace: trace}
	}
	return m
}
