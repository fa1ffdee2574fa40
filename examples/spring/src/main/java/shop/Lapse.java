package shop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageDeliveryMode;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.stereotype.Component;

/**
 * Grants coupons and tells of orders, by events. A method that returns has the broker's confirm; one that throws may have sent:
 * call it again with the same key or order, which does nothing twice. Call it from your outbox, not in the shopper's request.
 */
@Component
public class Lapse {
  private final RabbitTemplate rabbit;
  private final ObjectMapper json;
  private final String issuance;
  private final String orders;

  public Lapse(
      RabbitTemplate rabbit,
      ObjectMapper json,
      @Value("${lapse.issuance}") String issuance,
      @Value("${lapse.orders}") String orders) {
    this.rabbit = rabbit;
    this.json = json;
    this.issuance = issuance;
    this.orders = orders;
  }

  /** Grants one coupon of a template to a user. The key names the occasion (an order, a campaign and user): once per key, for ever. */
  public void grant(String key, String template, String user) {
    Map<String, Object> data = Map.of("grant_key", key, "template_id", template, "user_id", user);
    send(issuance, "coupon.grant", key, "coupon.grant.v1", data);
  }

  /** An order is paid: its coupons are redeemed. */
  public void paid(String order, String user, List<String> coupons) {
    send(orders, "order.paid", order + "-paid", "order.paid.v1", Map.of("order_id", order, "user_id", user, "coupon_ids", coupons));
  }

  /** An order is over without payment: its coupons come back, and it may not lock again. */
  public void closed(String order, String user, List<String> coupons) {
    send(orders, "order.closed", order + "-closed", "order.closed.v1", Map.of("order_id", order, "user_id", user, "coupon_ids", coupons));
  }

  private void send(String exchange, String key, String id, String type, Map<String, Object> data) {
    Map<String, Object> event =
        Map.of("specversion", "1.0", "id", id, "source", "/shop", "type", type, "datacontenttype", "application/json", "data", data);
    CorrelationData confirm = new CorrelationData(id);
    try {
      Message message =
          MessageBuilder.withBody(json.writeValueAsBytes(event))
              .setContentType("application/cloudevents+json")
              .setMessageId(id)
              .setDeliveryMode(MessageDeliveryMode.PERSISTENT)
              .build();
      rabbit.send(exchange, key, message, confirm);
      CorrelationData.Confirm answer = confirm.getFuture().get(10, TimeUnit.SECONDS);
      if (!answer.isAck() || confirm.getReturned() != null) {
        throw new IllegalStateException("the broker has not taken " + id);
      }
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException("event " + id, e);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted before the confirm of " + id, e);
    } catch (ExecutionException | TimeoutException e) {
      throw new IllegalStateException("no confirm of " + id, e);
    }
  }
}
