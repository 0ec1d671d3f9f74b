"""The operations in plain torch: exact, slow, readable. The oracle of every backend, and differentiable in float32."""
