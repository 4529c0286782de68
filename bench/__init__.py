"""Speed, side by side: us and a floor (or a peer) in the same minutes, as ratios. `./run bench [log|backlog|spark]`."""
