"""Amazon SNS and SQS."""
