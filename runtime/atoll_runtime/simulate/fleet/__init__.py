"""A fleet of learners in simulated time: failures and recovery, speeds and rounds, learners that join and leave."""
