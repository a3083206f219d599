"""The log on Apache Kafka. Import what you need from its modules; most load confluent-kafka."""
