package shop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;

/**
 * Hears what became of coupons. Every event may come again and in any order: repeats are dropped by source and id in the
 * transaction of the effect, and of one coupon's events the highest version stands.
 */
@Component
public class Coupons {
  private final JdbcTemplate db;
  private final ObjectMapper json;

  public Coupons(JdbcTemplate db, ObjectMapper json) {
    this.db = db;
    this.json = json;
  }

  @RabbitListener(queues = "${lapse.queue}")
  @Transactional
  public void on(Message message) {
    JsonNode event = read(message.getBody());
    int fresh =
        db.update(
            "INSERT IGNORE INTO lapse_seen (source, id, at) VALUES (?,?,UTC_TIMESTAMP(3))",
            event.path("source").asText(),
            event.path("id").asText());
    if (fresh == 0) {
      return;
    }
    JsonNode data = event.path("data");
    if (event.path("type").asText().equals("coupon.redeem_refused.v1")) {
      // An order is paid whose coupon it cannot have: the only sign of it. Tell whoever settles orders.
      return;
    }
    db.update(
        "INSERT INTO coupon_fate (coupon_id, version, fate, at) VALUES (?,?,?,UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE"
            + " fate = IF(VALUES(version) > version, VALUES(fate), fate), version = GREATEST(version, VALUES(version))",
        data.path("coupon_id").asText(),
        data.path("version").asLong(),
        event.path("type").asText());
  }

  private JsonNode read(byte[] body) {
    try {
      JsonNode event = json.readTree(body);
      if (event.path("id").asText().isEmpty() || event.path("source").asText().isEmpty()) {
        throw new AmqpRejectAndDontRequeueException("no CloudEvent");
      }
      return event;
    } catch (IOException e) {
      throw new AmqpRejectAndDontRequeueException("not readable", e); // to the parked ones: it never will be
    }
  }
}
