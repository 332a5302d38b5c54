"""Writes orders to Kafka, as a shop's application might: orders.py BROKER COUNT."""

import json
import sys
import time

from confluent_kafka import Producer

producer = Producer(
    {
        "bootstrap.servers": sys.argv[1],
        "enable.idempotence": True,
        "linger.ms": 50,
        "message.timeout.ms": 120_000,
    }
)
acknowledged = 0


def note(error, _message):
    """Counts an order that the broker has."""
    global acknowledged
    if error is not None:
        sys.exit(f"an order is lost: {error}")
    acknowledged += 1


for number in range(int(sys.argv[2])):
    order = {"id": number, "item": ("wheel", "stone", "sluice")[number % 3]}
    producer.produce("shop.orders", json.dumps(order), on_delivery=note)
    producer.poll(0)
    time.sleep(0.0005)
producer.flush()
print(f"{acknowledged} orders acknowledged")
