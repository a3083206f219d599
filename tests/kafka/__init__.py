"""What is only true of a real Apache Kafka, tested on one."""
