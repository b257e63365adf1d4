"""What engines call: each module hooks one of them, and imports it only where it is used."""
