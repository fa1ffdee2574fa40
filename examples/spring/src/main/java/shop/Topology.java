package shop;

import java.util.ArrayList;
import java.util.List;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Declarable;
import org.springframework.amqp.core.Declarables;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** The shop's own queue: durable, replicated, with a place for what cannot be handled. Lapse's exchange is not declared here: it is Lapse's. */
@Configuration
public class Topology {
  private static final String[] KEYS = {
    "coupon.expired", "coupon.used", "coupon.refunded", "coupon.voided", "coupon.reinstated", "coupon.redeem_refused"
  };

  @Bean
  Declarables coupons(@Value("${lapse.queue}") String name, @Value("${lapse.exchange}") String exchange) {
    Queue parked = QueueBuilder.durable(name + ".parked").quorum().build();
    Queue queue =
        QueueBuilder.durable(name).quorum().deliveryLimit(20).deadLetterExchange("").deadLetterRoutingKey(parked.getName()).build();
    TopicExchange events = new TopicExchange(exchange);
    events.setShouldDeclare(false);
    List<Declarable> all = new ArrayList<>(List.of(parked, queue));
    for (String key : KEYS) {
      all.add(BindingBuilder.bind(queue).to(events).with(key));
    }
    return new Declarables(all);
  }
}
