package shop;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;

/** A shop that grants coupons, tells of its orders, and hears what became of the coupons. */
@SpringBootApplication
public class Shop {
  public static void main(String[] args) {
    SpringApplication.run(Shop.class, args);
  }
}
